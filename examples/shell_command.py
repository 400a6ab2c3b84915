"""A program in any language as objective: its last line of output that is a JSON object is the result.

python examples/shell_command.py
"""

from mpitune import Command, Float, search

PROGRAM = """
BEGIN {
    print "training with a rate of", rate > "/dev/stderr"
    loss = (log(rate) / log(10) + 2) ^ 2 + momentum / 10
    printf "{\\"loss\\": %.6f}\\n", loss
}
"""

if __name__ == "__main__":
    program = PROGRAM.replace("{", "{{").replace("}", "}}")  # braces that are no parameters
    command = Command(["awk", "-v", "rate={rate}", "-v", "momentum={momentum}", program])
    space = {"rate": Float(1e-4, 1, log=True), "momentum": Float(0, 0.99)}
    study = search(command, space, strategy="sobol", n_trials=16, minimize="loss", trial_timeout=60)
    print(study.report())

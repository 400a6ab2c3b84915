# shellcheck shell=bash disable=SC2034  # the batch scripts use what is set here
# What the batch scripts share; they read it from the folder in which sbatch was called. It takes the script's arguments
# (-m mnist_svm --folds 5 24, or ridge.py 50) apart and defines how a study is run and continued.
#
#     python     how Python is called: in $IMAGE if that is set
#     program    -m mnist_svm, or ridge.py
#     options    what a job adds: the devices that Slurm gave it, unless --gpu says otherwise, and a longer grace
#     $@         all other arguments
#     RESULTS    results folder, as given or results/ and the program's name

refuse() {
    echo "$1" >&2
    exit 2
}

python=(python)
[ -z "${IMAGE:-}" ] || python=(apptainer run --nv "$IMAGE")

if [ "${1:-}" = -m ] && [ $# -gt 1 ]; then
    name=$2 program=(-m "$2")
    shift 2
elif [ $# -gt 0 ] && [ "$1" != -m ]; then
    name=$(basename "$1" .py) program=("$1")
    shift
else
    refuse "no program: write it after the batch script, as in sbatch slurm/search.sbatch -m mnist_svm 24"
fi
arguments=" $* "

given() { # whether option $1 is among the arguments
    [[ $arguments == *" $1 "* || $arguments == *" $1="* ]]
}

if given --results; then
    refuse "--results: set RESULTS=folder for sbatch instead, since the batch script needs to know the folder too"
fi
RESULTS=${RESULTS:-results/$name}

options=()
if ! given --gpu; then
    if [ "${SLURM_GPUS_ON_NODE:-0}" != 0 ]; then # it is 0 in a job that asked for none
        options+=(--gpu all)
    else
        options+=(--gpu none)
        given --workers || options+=(--workers "${SLURM_CPUS_PER_TASK:-1}")
    fi
fi
# Slurm sends USR1 two to three minutes before the end. After scancel it kills in KillWait seconds, 30 as a rule.
given --grace || options+=(--grace 90)

# Run a command and hand USR1 on to it: srun and mpirun pass it to every rank, and trials that run may finish.
run() {
    local job status
    "$@" &
    job=$!
    trap 'kill -USR1 '$job USR1
    wait $job
    status=$?
    while kill -0 $job 2>/dev/null; do # it was the signal that ended the wait
        wait $job
        status=$?
    done
    trap - USR1
    return $status
}

finished() { # number of trials in results folder $1, 0 if it holds no study
    "${python[@]}" -m mpitune status "$1" 2>/dev/null | awk '$1 == "trials" { n = $2 } END { print n + 0 }'
}

# Put this job back into the queue, to continue the study in folder $1, which had $2 trials when the job started. A job
# that finished none would do so for ever. Returns only where the job does not continue.
requeue() {
    local job=$SLURM_JOB_ID
    [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    if [ "$(finished "$1")" = "$2" ]; then
        echo "not requeued, as no trial was finished: see above, or give the job more --time" >&2
    elif scontrol requeue "$job"; then
        exit 75
    else
        echo "not requeued, as Slurm refuses it: submit the job again to continue" >&2
    fi
}

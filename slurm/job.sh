# shellcheck shell=bash disable=SC2034  # the batch scripts use what is set here
# What the batch scripts share; they read it from the folder in which sbatch was called. Their arguments are those of
# python, and reach it as they are. What a job adds is in the environment, and counts where the command does not say it:
#
#     python             how Python is called: in $IMAGE if that is set
#     MPITUNE_OPTIONS    the devices that Slurm gave the job, and a longer grace; what it has already stays
#     MPITUNE_PROGRESS   a file that the program makes once it has kept a finished trial

refuse() {
    echo "$1" >&2
    exit 2
}

python=(python)
[ -z "${IMAGE:-}" ] || python=(apptainer run --nv "$IMAGE")

if [ $# -eq 0 ] || [ "$*" = -m ]; then
    refuse "no program: write it after the batch script, as in sbatch slurm/search.sbatch -m mnist_svm 24"
fi

said=" ${MPITUNE_OPTIONS:-} $* "

given() { # whether option $1 is said
    [[ $said == *" $1 "* || $said == *" $1="* ]]
}

add() { # an option, unless it is said
    given "$1" || export MPITUNE_OPTIONS="${MPITUNE_OPTIONS:+$MPITUNE_OPTIONS }$*"
}

if [ "${SLURM_GPUS_ON_NODE:-0}" != 0 ]; then # it is 0 in a job that asked for none
    add --gpu all
elif ! given --gpu; then
    add --gpu none
    add --workers "${SLURM_CPUS_PER_TASK:-1}"
fi
# Slurm sends USR1 two to three minutes before the end. After scancel it kills in KillWait seconds, 30 as a rule.
add --grace 90

# Run a command, and end with its status: 0 to 3 say that it is done, or what is wrong. After 75, and where a rank or a
# node was lost, the job goes back into the queue. One that has kept no trial would do so for ever.
run() {
    local job status
    export MPITUNE_PROGRESS=$PWD/.job-${SLURM_JOB_ID:-$$}
    rm -f "$MPITUNE_PROGRESS"
    echo "for what the command does not say itself: $MPITUNE_OPTIONS" >&2
    "$@" &
    job=$!
    trap 'kill -USR1 '$job USR1 # srun and mpirun pass it to every rank, and trials that run may finish
    wait $job
    status=$?
    while kill -0 $job 2>/dev/null; do # it was the signal that ended the wait
        wait $job
        status=$?
    done
    trap '' USR1
    if rm "$MPITUNE_PROGRESS" 2>/dev/null; then
        [ $status -le 3 ] || requeue
    elif [ $status -gt 3 ]; then
        echo "not requeued, as no trial was kept: see above; give the search a results folder, or the job more --time" >&2
    fi
    exit $status
}

requeue() { # returns only where the job does not continue
    local job=$SLURM_JOB_ID
    [ "${goes_on:-}" != next ] || return
    [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    if scontrol requeue "$job"; then
        exit 75
    else
        echo "not requeued, as Slurm refuses it: submit the job again to continue" >&2
    fi
}

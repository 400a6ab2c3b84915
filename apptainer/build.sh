#!/usr/bin/env bash
# Build images: apptainer/build.sh [cpu|cu11|cu12|cu13]...      (default: the one that fits this machine's driver)
#
# OPENMPI  series of Open MPI inside the image; it must be that of the mpirun which starts it (default: what `mpirun
#          --version` says here when it is 4.1 or 5.x, else 5.0)
# OUT      folder of the images (default .)
# OPTIONS  further options of apptainer build, such as --fakeroot
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(cd "${OUT:-.}" && pwd)

cuda_version() { # of the driver: "12.4" and so on; empty without one
    { nvidia-smi 2>/dev/null || true; } | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p' | head -n 1
}

openmpi_series() {
    local version
    version=$({ mpirun --version 2>/dev/null || true; } | sed -n 's/.*(Open MPI) \([0-9]*\.[0-9]*\)\..*/\1/p')
    case $version in
        4.1 | 5.*) echo "$version" ;;
        ?*) echo "build.sh: mpirun is Open MPI $version here, the image will have 5.0: use srun --mpi=pmix" >&2 && echo 5.0 ;;
        *) echo 5.0 ;;
    esac
}

version=$(apptainer --version | sed 's/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/')
if [[ $(printf '%s\n' 1.2 "$version" | sort --version-sort | head -n 1) != 1.2 ]]; then
    echo "build.sh: apptainer is $version here, and the definition files need 1.2 (%arguments): build where there is one" >&2
    exit 2
fi
if (($# == 0)); then
    cuda=$(cuda_version)
    case $cuda in
        '') set -- cpu ;;
        11 | 12) set -- "cu$cuda" ;;
        *) set -- cu13 ;;
    esac
fi
series=${OPENMPI:-$(openmpi_series)}
read -r -a options <<<"${OPTIONS:-}"
cd "$root" # the paths of %files are relative to it
for name in "$@"; do
    if [[ ! -e apptainer/$name.def ]]; then
        echo "build.sh: there is no apptainer/$name.def: give cpu, cu11, cu12 or cu13" >&2
        exit 2
    fi
    apptainer build "${options[@]}" --build-arg "OPENMPI=$series" "$out/$name.sif" "apptainer/$name.def"
done

#!/bin/sh
# Install the system packages that tests/cluster and the browser tests of tests/mpitune/report need (Debian or Ubuntu, as
# root). Quick when all is there.
set -eu

packages="iproute2 util-linux munge slurmctld slurmd slurm-client libpmix-dev openssh-server openssh-client openmpi-bin chromium fonts-dejavu-core"

missing=
for package in $packages; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  # the list is meant to be split into words
apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $missing >/dev/null

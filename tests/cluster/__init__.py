"""A cluster on one machine: hosts made of Linux namespaces, with mpirun and Slurm on them."""

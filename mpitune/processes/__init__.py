"""The processes of one rank: the server that forks workers, what ends with them, signals and output."""

"""Machines: ranks and their messages, devices, processes, shared memory. It knows nothing of trials or studies."""

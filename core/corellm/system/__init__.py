"""What the engine asks of the machine: memory, threads, processes, devices, the format of logs."""

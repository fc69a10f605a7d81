"""What every folder of the server may use: tasks, fair queues, keys, files of the operator."""

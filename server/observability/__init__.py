"""What is told of requests besides their answers: ids in logs, an access log, traces, figures of processes."""

"""Observability of requests: ids in logs, an access log, traces, metrics of processes."""

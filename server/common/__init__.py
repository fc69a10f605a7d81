"""Shared by all folders of the server: tasks, fair queues, keys, files of the operator."""

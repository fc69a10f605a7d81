"""Launches Triton kernels: on a GPU without Triton's own launcher, for a GPU that is not there, or interpreted."""

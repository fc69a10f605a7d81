"""Times single operations of ``stentor.kernels``, against what the machine can do at most."""

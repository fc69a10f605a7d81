"""Models: the modules of each architecture, built from layers and kernels."""

"""Models: the modules of each architecture, over layers and kernels."""

"""A decoder split over workers: what one of them computes, and what it takes of each stored tensor. Torch-free."""

"""Model code: configs (torch-free) and modules."""

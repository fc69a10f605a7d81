"""Image processors that transformers has for torchvision alone, with Pillow and numpy. They run in the child."""

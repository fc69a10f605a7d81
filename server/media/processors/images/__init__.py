"""Image processors that transformers has for torchvision only, with Pillow and numpy. They run in the child."""

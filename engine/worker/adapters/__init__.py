"""LoRA adapters: reading their files, and the memory that holds them."""

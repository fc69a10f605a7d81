"""SGLang's own endpoint of generation."""

"""What runs steps, one by one or one behind another, and hands out their results."""

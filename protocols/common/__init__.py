"""What the wire formats share: errors, bounds, and bodies that are decoded and located."""

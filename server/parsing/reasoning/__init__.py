"""How models set their reasoning apart from their answers."""

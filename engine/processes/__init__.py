"""How processes and actors are started, watched, killed and outlived."""

"""The engine process: schedules requests, plans steps, starts and watches workers. No torch."""

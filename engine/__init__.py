"""The engine: scheduler, block pool, actors and workers. It knows no protocol."""

"""SageMaker's endpoint."""

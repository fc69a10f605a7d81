"""vLLM's endpoints of token ids: prompts without their answers, and answers without their texts."""

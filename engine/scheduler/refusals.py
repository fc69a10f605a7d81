"""Why a request can never run."""

from stentor.protocols.actors import Submit

from ..cache.prefix import MAX_TOKEN_ID


def refusal_of(submit: Submit, max_model_len: int) -> str | None:
    """What is wrong with a request in itself; None where nothing is."""
    prompt_len = len(submit.prompt)
    params = submit.params
    if not submit.seeds:
        return "the request has no seeds; one per choice is needed"
    if not prompt_len:
        return "the prompt is empty; at least one token is needed"
    if params.max_tokens < 0:
        return f"max_tokens is {params.max_tokens}; it must be 0 or more"
    if min(submit.prompt) < 0 or max(submit.prompt) > MAX_TOKEN_ID:
        return f"the prompt has a token id outside [0, {MAX_TOKEN_ID}]"
    if prompt_len + min(1, params.max_tokens) > max_model_len:
        return (
            f"the prompt has {prompt_len} tokens, but the model's context is {max_model_len}, "
            "prompt and output together: shorten the prompt"
        )
    return _refuse_resumed(submit)


def too_long(needed: int, num_blocks: int, block_size: int) -> str | None:
    """Why a request that may grow to ``needed`` tokens finds no room in a cache; None if it does."""
    if -(-needed // block_size) > num_blocks:
        return (
            f"the request may grow to {needed} tokens, but the KV cache holds {num_blocks * block_size}: "
            "shorten the prompt, lower max_tokens, or give the cache more memory"
        )
    return None


def _refuse_resumed(submit: Submit) -> str | None:
    """Why a request cannot go on as it is said to have been; None if it can."""
    resumed = submit.resumed
    if resumed is None:
        return None
    choices = len(submit.seeds)
    if len(resumed.outputs) != choices or not all(0 <= index < choices for index in resumed.ended):
        return f"the request is resumed with {len(resumed.outputs)} outputs, but has {choices} choices"
    if any(not 0 <= token <= MAX_TOKEN_ID for outputs in resumed.outputs for token in outputs):
        return f"the request is resumed with a token id outside [0, {MAX_TOKEN_ID}]"
    return None

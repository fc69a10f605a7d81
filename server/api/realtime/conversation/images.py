"""Pictures in items of a realtime conversation."""

from stentor.protocols.openai.realtime.given import GivenItem

from ....media.collect import Accepted, check_modality


def check_images(given: GivenItem, where: str, accepted: Accepted) -> None:
    """Raises BadRequest for a picture in an item at ``where`` if the model does not take pictures."""
    for place in given.images:
        check_modality("image", f"{where}.content[{place}]", accepted)

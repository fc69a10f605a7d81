"""Services of the routes for stored objects."""

import msgspec

from stentor.protocols.common.limits import Limits

from ..batches.runner import BatchRunner
from ..config.config import StoreConfig
from ..storage.database import Database
from .admission_control import AdmissionControl


class StoreServices(msgspec.Struct, frozen=True):
    """For files, batches and conversations."""

    config: StoreConfig
    store: Database
    admission: AdmissionControl
    batches: BatchRunner

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.admission.limits

"""Services of the routes for stored objects."""

from dataclasses import dataclass

from stentor.protocols.common.limits import Limits

from ..batches.runner import BatchRunner
from ..config.config import StoreConfig
from ..storage.database import Database
from .admission_control import AdmissionControl


@dataclass(frozen=True)
class StoreServices:
    """For files, batches and conversations."""

    config: StoreConfig
    store: Database
    admission: AdmissionControl
    batches: BatchRunner

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.admission.limits

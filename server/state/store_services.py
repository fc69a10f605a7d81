"""What the routes for stored objects use."""

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
        """Of what one request may ask for."""
        return self.admission.limits

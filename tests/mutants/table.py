"""Lists all mutants."""

from mutants.access import ACCESS
from mutants.memory import MEMORY
from mutants.mutant import Mutant
from mutants.producing import PRODUCING
from mutants.records import RECORDS
from mutants.sending import SENDING
from mutants.spark import SPARK
from mutants.takeover import TAKEOVER
from mutants.transacting import TRANSACTING

MUTANTS: tuple[Mutant, ...] = (
    *RECORDS, *MEMORY, *PRODUCING, *SENDING, *TAKEOVER, *TRANSACTING, *ACCESS, *SPARK,
)  # fmt: skip

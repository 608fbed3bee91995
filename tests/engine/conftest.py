"""Makes `import toy` work, here and in the ranks that the tests start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

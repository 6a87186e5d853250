"""The settings: flags, `OUTRIDER_*` variables and a TOML file, in that order, merged and checked.

Settings are read once, at the start, and do not change afterwards. `model` has the settings and the rules between them,
`values` the kinds of their values, `members` those of the cluster, `clients_file` reads the clients file, and `loading`
merges the sources.
"""

from outrider.settings.loading import load
from outrider.settings.model import RETIRED, Settings
from outrider.settings.values import SettingsError, Size, parse_bytes

__all__ = ["RETIRED", "Settings", "SettingsError", "Size", "load", "parse_bytes"]

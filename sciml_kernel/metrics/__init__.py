"""What a run reports: names, the file it is kept in, the history read back.

names.py    metric names, and which axis (step or epoch) a metric lives on
jsonl.py    `JsonlSink` writes events to `metrics.jsonl`, `read_events` reads them back, `last_values` only the newest
history.py  events -> `xarray.Dataset`; `HistoryReader` follows a growing file
reduce.py   over ranks (`over_ranks`) and over time (`RateMeter`)

Import the modules themselves: only history.py loads xarray.
"""

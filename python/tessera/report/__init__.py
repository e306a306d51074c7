"""`tessera report`: one self-contained HTML page about one optimisation.

`record` gathers what there is to tell as plain data (also what `tessera optimize -o run.json`
writes); `page` turns such data into HTML, without the network and without the core's help.
`campaign_page` tells of many programs.
"""

from tessera.report.campaign import campaign_page
from tessera.report.page import page
from tessera.report.record import record

__all__ = ["campaign_page", "page", "record"]

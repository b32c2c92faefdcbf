"""Tools for a directory that no server has open: check, repair, salvage.

They read everything and trust nothing: every checksum is computed, every count is made again. Only
`repair` writes, and only what it can prove; what it gives up is written down as a loss. They stand
above the engine because repair opens one at its end to show that the directory opens.
"""

"""From learning curves to the paper's tables, and to a page to read them on.

`folder` reads a store and writes the report; nothing is imported before its module is asked for.
"""

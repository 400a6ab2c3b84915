"""Files on disk: journal, tables, files written whole. This room knows no machine and no engine."""

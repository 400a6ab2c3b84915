"""What is kept on disk: journal, tables, files written whole. It knows no machine and no engine."""

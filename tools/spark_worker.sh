#!/bin/sh
# Starts a Python worker of Spark. Spark names PySpark as an archive without byte code in front of the path, which
# each worker would compile anew, half a second each time; the same modules lie unpacked behind it.
kept=
rest=$PYTHONPATH:
while [ -n "$rest" ]; do
  each=${rest%%:*}
  rest=${rest#*:}
  case $each in
    '' | */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept${kept:+:}$each ;;
  esac
done
PYTHONPATH=$kept exec "${SPARK_TIDEWAL_PYTHON:-python3}" "$@"

# The images of Tidewal. From the top of the tree:
#
#   docker build -t tidewal .                          a broker, and all commands that need no extra but bench
#   docker build -t tidewal-spark --target spark .     the same with Java, Spark and the extras for proofs
#
# CONTAINERS.md says how to run them. What is installed is in requirements*.lock, by version and hash (make lock).
# What builds stays in its stages: an image gets /opt/tidewal alone, without pip, compiled, as nobody may write
# there later, and without the times of files, so that what is built twice is equal.
FROM python:3.11-slim AS base
ENV PATH=/opt/tidewal/bin:$PATH

FROM base AS packages
RUN python -m venv /opt/tidewal
COPY tools/images/compile /
COPY requirements.lock ./
RUN pip install --no-cache-dir --no-compile --require-hashes --requirement requirements.lock && /compile

FROM packages AS packages-spark
COPY requirements-spark.lock ./
RUN pip install --no-cache-dir --no-compile --require-hashes --requirement requirements-spark.lock && /compile

FROM packages AS wheel
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE *_tidewal.py ./
COPY tidewal tidewal
COPY protocol protocol
COPY storage storage
COPY remote remote
COPY broker broker
COPY tools tools
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM packages AS build
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --no-compile --no-deps /wheel/*.whl && /compile tidewal \
 && pip uninstall --yes --quiet setuptools pip

FROM packages-spark AS build-spark
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --no-compile --no-deps /wheel/*.whl && /compile tidewal \
 && pip uninstall --yes --quiet setuptools pip

FROM base AS running
RUN useradd --uid 1000 --no-create-home --home-dir /var/lib/tidewal --shell /usr/sbin/nologin tidewal \
 && install --directory --owner tidewal --group tidewal /var/lib/tidewal
USER 1000
WORKDIR /var/lib/tidewal
ENTRYPOINT ["tidewal"]

FROM running AS spark
USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/tidewal /opt/tidewal
USER 1000
WORKDIR /tmp
CMD ["verify", "--help"]

FROM running AS broker
# What set-ups written for Kafka's images look for in a container: start scripts, which Testcontainers writes anew,
# Kafka's scripts by name, and folders to mount.
USER root
COPY --chown=1000:1000 tools/images/kafka/etc /etc
COPY tools/images/kafka/opt /opt
COPY tools/images/kafka/usr /usr
RUN install --directory --owner tidewal --group tidewal /etc/kafka/docker /etc/kafka/secrets \
      /etc/confluent/docker /mnt/shared/config /tmp/kraft-combined-logs /var/lib/kafka/data
COPY --from=build /opt/tidewal /opt/tidewal
COPY tools/images/server.properties /etc/tidewal/
ENV PATH=$PATH:/opt/kafka/bin TIDEWAL_CONFIG=/etc/tidewal/server.properties TIDEWAL_ADMIN=0.0.0.0:9644
USER 1000
VOLUME /var/lib/tidewal
EXPOSE 9092 9644
HEALTHCHECK --interval=5s --timeout=6s --start-period=60s CMD ["tidewal", "health"]
ENTRYPOINT ["container-entrypoint"]
CMD ["broker", "--from-env"]

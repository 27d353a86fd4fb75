# An image for the controller and for the agents of engines: docker build -t team/train:1 .
# Jobs that need more packages build on it: FROM team/train:1, and RUN pip install ... as root.
FROM python:3.12-slim

# For another build of torch: --build-arg TORCH="torch==2.13.0 --index-url URL"
ARG TORCH=torch==2.13.0

# hadolint ignore=DL3013
RUN useradd --create-home --uid 1000 elastane \
    && pip install --no-cache-dir ${TORCH}

WORKDIR /opt/elastane
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --constraint constraints.txt ".[torch,controller,nodes,s3]"

# Numbers, so that a cluster can see that this user is not root.
USER 1000:1000
ENV ELASTANE_HOME=/shared/elastane
ENTRYPOINT ["elastane"]
CMD ["--help"]

# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes against the schemas of Kubernetes and of JobSet, without a cluster.

`./dev test --kubernetes` makes the Python that runs this, with kubernetes-validate and kubeflow-trainer-api."""
import copy
import os
import shutil
import subprocess
import unittest

try:
    import kubernetes_validate
    import yaml
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
    MISSING = None
except ImportError as error:
    MISSING = str(error)

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "deploy/kubernetes")
OLDEST = "1.29"  # before it, a Job had no tries for each index unless a cluster's administrator allowed them
OLDEST_OF = {"job": "1.31", "job-kueue": "1.31", "jobset": "1.31"}  # as above, a success policy


def problems(document, version):
    """What a cluster of this version would say against a document."""
    if document["kind"] == "JobSet":
        return problems_of_job_set(document, version)
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [error.message]
    return []


def problems_of_job_set(document, version):
    """By the models of its fields, which drop what they do not know; its jobs as what they become."""
    try:
        understood = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(document)).to_dict()
    except ValueError as error:
        return [str(error)]
    found = [] if understood == document else [f"not understood as written, but as {understood}"]
    for job in document["spec"]["replicatedJobs"]:
        found += problems({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]},
                           "spec": job["template"]["spec"]}, version)
    return found


@unittest.skipIf(MISSING, f"SKIPPED: {MISSING}; ./dev test --kubernetes installs it from PyPI")
@unittest.skipIf(shutil.which("kubectl") is None, "SKIPPED: there is no program 'kubectl'")
class SchemasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.documents = {}
        for folder in sorted(os.listdir(FOLDERS)):
            result = subprocess.run(["kubectl", "kustomize", os.path.join(FOLDERS, folder)], stdin=subprocess.DEVNULL,
                                    capture_output=True, text=True)
            if result.returncode != 0:
                raise AssertionError(f"{folder}: {result.stderr}")
            cls.documents[folder] = [document for document in yaml.safe_load_all(result.stdout) if document]

    def only(self, folder, kind):
        found = [document for document in self.documents[folder] if document["kind"] == kind]
        self.assertEqual(len(found), 1)
        return copy.deepcopy(found[0])

    def test_each_document_is_as_its_schema_wants_it(self):
        for folder, documents in self.documents.items():
            for version in (OLDEST_OF.get(folder, OLDEST), kubernetes_validate.latest_version()):
                for document in documents:
                    what = f"{folder}: {document['kind']} {document['metadata']['name']}"
                    self.assertEqual(problems(document, version), [], f"{what}, Kubernetes {version}")
                    print(f"{what}: as Kubernetes {version} wants it")

    def test_what_is_wrong_is_found(self):
        def pod(document):
            spec = document["spec"]
            if document["kind"] == "JobSet":
                spec = spec["replicatedJobs"][0]["template"]["spec"]
            return spec["template"]["spec"]

        def misspelt(document):
            pod(document)["restartPolice"] = "Never"

        def text_for_number(document):
            pod(document)["terminationGracePeriodSeconds"] = "120"

        def nameless(document):
            del pod(document)["containers"][0]["name"]

        for folder, kind in (("coordinator", "StatefulSet"), ("job", "Job"), ("jobset", "JobSet")):
            for spoil in (misspelt, text_for_number, nameless):
                document = self.only(folder, kind)
                spoil(document)
                self.assertNotEqual(problems(document, kubernetes_validate.latest_version()), [],
                                    f"{kind}, {spoil.__name__}")
        job_set = self.only("jobset", "JobSet")
        job_set["spec"]["network"]["enableDnsHostnames"] = job_set["spec"]["network"].pop("enableDNSHostnames")
        self.assertNotEqual(problems(job_set, kubernetes_validate.latest_version()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

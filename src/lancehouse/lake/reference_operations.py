"""Operations of the Lance interface on tags and branches."""

from __future__ import annotations

from lance_namespace import (
    CreateTableBranchRequest,
    CreateTableBranchResponse,
    CreateTableTagRequest,
    CreateTableTagResponse,
    DeleteTableBranchRequest,
    DeleteTableBranchResponse,
    DeleteTableTagRequest,
    DeleteTableTagResponse,
    GetTableTagVersionRequest,
    GetTableTagVersionResponse,
    LanceNamespace,
    ListTableBranchesRequest,
    ListTableBranchesResponse,
    ListTableTagsRequest,
    ListTableTagsResponse,
    UpdateTableTagRequest,
    UpdateTableTagResponse,
)
from lance_namespace.errors import TableBranchAlreadyExistsError, TableTagNotFoundError
from lance_namespace_urllib3_client.models.branch_contents import BranchContents
from lance_namespace_urllib3_client.models.tag_contents import TagContents

from lancehouse.lake.dataset import MAIN, TableRef
from lancehouse.paging import paginate


class ReferenceOperations(LanceNamespace):
    """Operations on tags and branches, which are not commits in Lance."""

    def list_table_tags(self, request: ListTableTagsRequest) -> ListTableTagsResponse:
        """List the tags by name."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            tag_page = paginate(dataset.tags.list(), request.limit, request.page_token)
        tags = {
            name: TagContents(branch=tag["branch"], version=tag["version"], manifestSize=tag["manifest_size"])
            for name, tag in tag_page.items.items()
        }
        return ListTableTagsResponse(tags=tags, page_token=tag_page.token)

    def get_table_tag_version(self, request: GetTableTagVersionRequest) -> GetTableTagVersionResponse:
        """Return the version that a tag points to, and its branch if that is not main."""
        table = TableRef.in_namespace(self, request.id)
        with table.dataset() as dataset:
            tag = dataset.tags.list().get(request.tag)
        if tag is None:
            raise TableTagNotFoundError(f"{table} has no tag {request.tag}")
        return GetTableTagVersionResponse(version=tag["version"], branch=tag["branch"])

    def create_table_tag(self, request: CreateTableTagRequest) -> CreateTableTagResponse:
        """Create a tag of a version, by default of the main branch."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.tags.create(request.tag, (request.branch or MAIN, request.version))
        return CreateTableTagResponse()

    def update_table_tag(self, request: UpdateTableTagRequest) -> UpdateTableTagResponse:
        """Point a tag to another version."""
        with TableRef.in_namespace(self, request.id, branch=request.branch).dataset() as dataset:
            dataset.tags.update(request.tag, (request.branch or MAIN, request.version))
        return UpdateTableTagResponse()

    def delete_table_tag(self, request: DeleteTableTagRequest) -> DeleteTableTagResponse:
        """Delete a tag; its version stays."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            dataset.tags.delete(request.tag)
        return DeleteTableTagResponse()

    def list_table_branches(self, request: ListTableBranchesRequest) -> ListTableBranchesResponse:
        """List the branches by name, without main."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            branch_page = paginate(dataset.branches.list(), request.limit, request.page_token)
        branches = {
            name: BranchContents(
                parentBranch=branch["parent_branch"],
                parentVersion=branch["parent_version"],
                createAt=branch["create_at"],
                manifestSize=branch["manifest_size"],
                metadata=branch["metadata"] or None,
            )
            for name, branch in branch_page.items.items()
        }
        return ListTableBranchesResponse(branches=branches, page_token=branch_page.token)

    def create_table_branch(self, request: CreateTableBranchRequest) -> CreateTableBranchResponse:
        """Create a branch from a version of another branch, by default the latest of main."""
        table = TableRef.in_namespace(self, request.id, branch=request.from_branch, version=request.from_version)
        with table.dataset() as dataset:
            if request.name in dataset.branches.list():
                raise TableBranchAlreadyExistsError(f"{table} already has a branch {request.name}")
            dataset.create_branch(request.name, (request.from_branch or MAIN, dataset.version))
        return CreateTableBranchResponse()

    def delete_table_branch(self, request: DeleteTableBranchRequest) -> DeleteTableBranchResponse:
        """Delete a branch, unless another branch was created from it."""
        with TableRef.in_namespace(self, request.id).dataset() as dataset:
            dataset.branches.delete(request.name)
        return DeleteTableBranchResponse()

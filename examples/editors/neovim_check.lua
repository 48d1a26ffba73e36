-- What an editor sees: nvim --headless -u NONE loss.py -S neovim_check.lua, in a directory with an
-- empty setup.cfg, where loss.py and train.py are LOSS and TRAIN of tests/test_lsp.py.
local function check()
  local function wait(what) assert(vim.wait(120000, what, 50), "the server did not answer") end
  local root = vim.fn.getcwd()
  vim.bo.filetype = "python"
  local start = vim.lsp.start or vim.lsp.start_client -- before 0.8
  local id = start({ name = "precision-lint", cmd = { "precision-lint", "lsp" }, root_dir = root })
  vim.lsp.buf_attach_client(0, id)
  local function show()
    for _, d in ipairs(vim.diagnostic.get(0)) do
      print(string.format("%d:%d %s %s", d.lnum + 1, d.col + 1, d.code, d.message))
    end
  end
  wait(function() return #vim.diagnostic.get(0) > 0 end)
  print("encoding: " .. (vim.lsp.get_client_by_id(id).offset_encoding or "?"))
  show()
  local function request(method, params)
    local answers = vim.lsp.buf_request_sync(0, method, params, 120000)
    for _, answer in pairs(answers or {}) do
      assert(not answer.err, vim.inspect(answer.err))
      return answer.result
    end
  end
  vim.api.nvim_win_set_cursor(0, { 6, 11 })
  local hover = request("textDocument/hover", vim.lsp.util.make_position_params(0, "utf-16"))
  print("hover: " .. hover.contents.value:match("^[^\n]*"))
  local params = vim.lsp.util.make_range_params(0, "utf-16")
  params.context = { diagnostics = {} }
  local actions = request("textDocument/codeAction", params)
  for _, action in ipairs(actions) do print("action: " .. action.title) end
  vim.lsp.util.apply_workspace_edit(actions[1].edit, "utf-16")
  wait(function() return #vim.diagnostic.get(0) == 0 end)
  print("after the fix: " .. vim.api.nvim_buf_get_lines(0, 4, 5, true)[1])
  -- typing, from the unsaved buffer
  vim.api.nvim_buf_set_lines(0, 4, 5, true, { "    p = x.sigmoid()", "    # \u{e9}" })
  wait(function() return #vim.diagnostic.get(0) == 1 end)
  print("while typing:")
  show()
  vim.cmd("edit!")
end

local passed, why = pcall(check)
if not passed then print(why) end
vim.cmd(passed and "quitall!" or "cquit!")

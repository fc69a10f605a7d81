// The form for a JSON schema: an object whose fields are texts, numbers, choices or lists of texts.

import { element, make } from "./dom.js";
import { t } from "./language.js";

const TEXT = { type: "string" };

// What a field may be: its name in the form, how a schema says it, and whether a schema says that.
function kinds() {
  return [
    ["string", t("text"), () => ({ ...TEXT })],
    ["integer", t("whole number"), () => ({ type: "integer" })],
    ["number", t("number"), () => ({ type: "number" })],
    ["boolean", t("yes or no"), () => ({ type: "boolean" })],
    ["enum", t("one of"), (values) => ({ ...TEXT, enum: values })],
    ["array", t("list of texts"), () => ({ type: "array", items: { ...TEXT } })],
  ];
}

const SAID = new Set(["type", "description", "enum", "items"]);

// The kind of a field; undefined for one that the form cannot show.
function kindOf(field) {
  if (!field || Object.keys(field).some((key) => !SAID.has(key))) return undefined;
  if (field.enum) return field.type === "string" && field.enum.every((each) => typeof each === "string") ? "enum" : undefined;
  if (field.type === "array") return JSON.stringify(field.items) === JSON.stringify(TEXT) ? "array" : undefined;
  return ["string", "integer", "number", "boolean"].includes(field.type) && !field.items ? field.type : undefined;
}

// The fields of a schema as `{name, kind, values, description, required}`; null where a form would lose something.
export function fieldsOf(text) {
  if (!text.trim()) return [];
  let schema = null;
  try {
    schema = JSON.parse(text);
  } catch {
    return null;
  }
  const known = new Set(["type", "properties", "required", "additionalProperties", "$schema"]);
  if (schema?.type !== "object" || Object.keys(schema).some((key) => !known.has(key))) return null;
  if (![undefined, false].includes(schema.additionalProperties)) return null;
  const fields = Object.entries(schema.properties ?? {}).map(([name, field]) => ({
    name,
    kind: kindOf(field),
    values: (field?.enum ?? []).join(", "),
    description: field?.description ?? "",
    required: (schema.required ?? []).includes(name),
  }));
  return fields.every(({ kind }) => kind) ? fields : null;
}

export function schemaOf(fields) {
  const made = new Map(kinds().map(([kind, , make]) => [kind, make]));
  const named = fields.filter(({ name }) => name);
  const properties = named.map(({ name, kind, values, description }) => {
    const choices = values.split(",").map((each) => each.trim()).filter(Boolean);
    return [name, { ...made.get(kind)(choices), ...(description ? { description } : {}) }];
  });
  const required = named.filter(({ required }) => required).map(({ name }) => name);
  return { type: "object", properties: Object.fromEntries(properties), required, additionalProperties: false };
}

function row({ name = "", kind = "string", values = "", description = "", required = true } = {}) {
  const list = make("input", { name: "values", value: values, placeholder: t("red, green, blue"), "aria-label": t("Choices") });
  const select = make("select", { name: "kind", "aria-label": t("Kind") }, ...kinds().map(([id, label]) => new Option(label, id)));
  select.value = kind;
  const show = () => (list.hidden = select.value !== "enum");
  select.addEventListener("change", show);
  show();
  const needed = make("input", { type: "checkbox", name: "required", checked: required });
  const made = make(
    "li",
    {},
    make("input", { name: "name", value: name, placeholder: t("name"), "aria-label": t("Name of the field"), spellcheck: false }),
    select,
    list,
    make("input", { name: "description", value: description, placeholder: t("what it means"), "aria-label": t("Description") }),
    make("label", {}, needed, ` ${t("required")}`),
    make("button", { type: "button", title: t("Remove"), "aria-label": t("Remove"), onclick: () => made.remove() }, "✕"),
  );
  return made;
}

function read(item) {
  const value = (name) => item.querySelector(`[name=${name}]`);
  const [name, kind, values, description] = ["name", "kind", "values", "description"].map((each) => value(each).value.trim());
  return { name, kind, values, description, required: value("required").checked };
}

// Lets `field`, a textarea that holds a schema, be filled in by the form.
export function startSchema(field) {
  const [dialog, list] = [element("schema"), element("schema-fields")];
  element("schema-show").addEventListener("click", () => {
    const fields = fieldsOf(field.value);
    element("schema-note").textContent = fields ? "" : t("This schema says more than a form can show: change it as text.");
    element("schema-use").disabled = element("schema-add").disabled = !fields;
    list.replaceChildren(...(fields?.length === 0 ? [{}] : fields ?? []).map(row));
    dialog.showModal();
  });
  element("schema-add").addEventListener("click", () => {
    list.append(row());
    list.lastElementChild.querySelector("input").focus();
  });
  element("schema-form").addEventListener("submit", (event) => {
    if (event.submitter !== element("schema-use")) return;
    const fields = [...list.children].map(read);
    const lacks = fields.find(({ name, kind, values }) => name && kind === "enum" && !values.replaceAll(",", "").trim());
    const names = fields.map(({ name }) => name).filter(Boolean);
    if (lacks || new Set(names).size < names.length) {
      event.preventDefault();
      element("schema-note").textContent = lacks ? t("{} needs choices.", lacks.name) : t("Two fields have one name.");
      return;
    }
    field.value = names.length ? JSON.stringify(schemaOf(fields), null, 2) : "";
    field.dispatchEvent(new Event("change"));
  });
}

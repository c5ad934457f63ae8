"""An engine of the module with a database in memory."""

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "person"
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


ENGINE = create_engine("sqlite://")
Base.metadata.create_all(ENGINE)


def work():
    with Session(ENGINE) as session:
        session.add(Person(name="a"))
        session.commit()
        return [one.name for one in session.query(Person)]


def fail():
    with ENGINE.connect() as connection:
        connection.execute(text("select * from missing"))
